"""What brings the packages that the light install leaves out, in the same words on both sides."""


def install(extra: str) -> str:
    """potluck is in no package registry, so that its own folder is what pip installs."""
    return f"""pip install ".[{extra}]" in potluck's folder"""
