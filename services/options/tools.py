"""The settings of `tandem reload`, `tandem new-secret` and `tandem internal-credentials`."""

from dataclasses import dataclass

from services.options.common import SecretOptions
from services.options.setting import setting


@dataclass(frozen=True)
class ReloadOptions:
    """Replaces the processes behind the shim of a running `tandem serve` while it serves."""

    runtime_dir: str | None = setting(
        None, "the server's --runtime-dir; needed if it has one, or if several servers run", unset="the only server's"
    )


@dataclass(frozen=True)
class NewSecretOptions:
    """Writes a new secret for the processes of one deployment, unless the file exists."""

    out: str = setting("", "file to write", required=True)


@dataclass(frozen=True)
class CredentialsOptions(SecretOptions):
    """Writes credentials for other programs: ca.pem, certificate.pem and key.pem for gRPC, and metrics-token."""

    out: str = setting("", "directory to write to", required=True)


TOOL_OPTIONS: dict[str, type] = {
    "reload": ReloadOptions,
    "new-secret": NewSecretOptions,
    "internal-credentials": CredentialsOptions,
}
