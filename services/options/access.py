"""The settings about who may ask the shim: API keys, the hosts and web origins of requests. Knows no parser."""

from dataclasses import dataclass

from services.options.setting import boolean, origins, setting, text_list


@dataclass(frozen=True)
class AccessOptions:
    """Options of the shim about its callers."""

    api_key: tuple[str, ...] | None = setting(
        None,
        "bearer token that requests need; given several times, each of the tokens will do",
        unset="no token",
        repeated=True,
        # Also vLLM's: what protected a server there must not be lost here.
        env=("TANDEM_API_KEY", "VLLM_API_KEY"),
        secret=True,
    )
    api_key_file: str | None = setting(
        None,
        "file with more tokens, one per line: NAME, GROUP, SHA-256 of the token in hexadecimal; keys of one group share"
        " cached prefixes; SIGHUP makes the server read it again",
        unset="no file",
    )
    admin_api_key: str | None = setting(
        None,
        "bearer token that administering needs (/reset_prefix_cache); it opens the other routes as well",
        unset="every token may administer",
        env=("TANDEM_ADMIN_API_KEY",),
        secret=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "JSON list of names that the header Host may have, *.NAME for all below NAME, * for any; localhost and"
        " addresses always may",
        unset="any; on a loopback address only localhost and --host",
        parse=text_list,
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        'JSON list of the web origins whose pages may use the API, for example ["https://chat.example.com"], or ["*"]'
        " for all, which is the default of vLLM",
        unset="none",
        parse=origins,
    )
    allowed_methods: tuple[str, ...] = setting(
        ("*",), "JSON list of the methods that pages of --allowed-origins may use", parse=text_list
    )
    allowed_headers: tuple[str, ...] = setting(
        ("*",), "JSON list of the headers that pages of --allowed-origins may send", parse=text_list
    )
    allow_credentials: bool = setting(
        False,
        "pages of --allowed-origins may send cookies and client certificates; refused with the origin *",
        parse=boolean,
    )
