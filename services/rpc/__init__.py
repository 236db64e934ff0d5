"""What every gRPC edge shares: hello, columns, mailboxes, resumable calls, the server shell. Knows no role."""
