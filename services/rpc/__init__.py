"""What the gRPC edges (shim to tokenizer, tokenizer to engine) share: hello, columns, mailboxes, calls, links."""
