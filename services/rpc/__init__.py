"""What both gRPC edges share: hello, columns, mailboxes, resumable calls, links, the gRPC server. Knows no role."""
