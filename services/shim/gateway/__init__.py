"""The shim's gateway API: vLLM's engine protocol (vllm.grpc.engine.VllmEngine) over the events that HTTP renders, too.

Its stubs are in the package smg-grpc-proto, an extra. So only start.py imports the modules that need them, and only if
there is a --grpc-port. Gateways such as SMG tokenize and render themselves: this API takes and returns token ids.
"""
