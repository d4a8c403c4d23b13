"""An exported model to the Hugging Face Hub."""

from pathlib import Path

from lightningbus.run.errors import UserError
from lightningbus.schemas.text import shorten_line


def push_to_hub(directory: Path, repo: str, *, is_public: bool) -> str:
    """Upload a model directory, private unless ``is_public``, by ``huggingface_hub``; returns its address.

    The client finds the token itself (``HF_TOKEN`` or ``hf auth login``). An existing repository keeps its
    visibility. Raises `UserError`.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    api = HfApi()
    try:
        address = api.create_repo(repo, private=not is_public, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=directory, commit_message="Export from lightningbus")
    except HfHubHTTPError as error:
        status = error.response.status_code
        advice = "log in by `hf auth login` or set HF_TOKEN" if status in (401, 403) else "try again"
        raise UserError(
            f"{repo} cannot be uploaded: the Hub answered {status}; {advice}; the model is in {directory}"
        ) from error
    except (HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled, HTTPError, OSError, ValueError) as error:
        reason = shorten_line(str(error), 200)
        raise UserError(f"{repo} cannot be uploaded: {reason}; the model is in {directory}") from error
    return str(address)
