"""Checks the conda recipe: parses it, renders it for each platform, and compares it with the sources. With an argument, builds it into that folder.

    recipe.py VERSION RUST [TO [--system-tools]]

It needs py-rattler-build, which `packaging/conda.sh` installs. `--system-tools` builds with the compilers of this machine and no channel.
"""

import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rattler_build import EnvironmentIsolation, RenderConfig, Stage0Recipe, ToolConfiguration, VariantConfig
from rattler_build.tool_config import PlatformConfig

HERE = Path(__file__).resolve().parent / "conda"
PLATFORMS = ("linux-64", "linux-aarch64")


def render(recipe, name):
    """The one package that the recipe makes on a platform."""
    config = VariantConfig.from_file(HERE / "variants.yaml")
    [variant] = recipe.render(config, RenderConfig(PlatformConfig(target_platform=name)))
    return variant


def check(version, rust):
    recipe = Stage0Recipe.from_file(HERE / "recipe.yaml")
    for name in PLATFORMS:
        about = render(recipe, name).recipe.to_dict()
        found = about["package"]["version"]
        if found != version:
            sys.exit(f"recipe.yaml has version {found}, and the sources have {version}")
        needs = [str(one) for one in about["requirements"]["build"]]
        if f"rust >={rust}" not in needs:
            sys.exit(f"recipe.yaml needs {needs}, and the sources Rust {rust}")
    # The control: the parser refuses what a recipe cannot contain.
    try:
        Stage0Recipe.from_yaml(recipe.recipe_path.read_text().replace("\nbuild:\n", "\nbuilt:\n"))
    except Exception:
        return recipe
    sys.exit("py-rattler-build accepts any recipe: nothing was checked")


def with_system_tools(recipe, folder):
    """The recipe for a machine that has compilers and Rust itself."""
    text = re.sub(r"^requirements:\n(?: .*\n|\n)+", "", recipe.recipe_path.read_text(), flags=re.MULTILINE)
    shutil.copy(HERE / "build.sh", folder)
    return Stage0Recipe.from_yaml(text.replace("path: ../..", f"path: {HERE.parent.parent}"), recipe_dir=folder)


def build(recipe, to, system):
    """Builds the package, runs its tests, and prints its path."""
    channels, isolation = ["conda-forge"], EnvironmentIsolation.STRICT
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as out:
        if system:
            recipe, channels, isolation = with_system_tools(recipe, folder), [], EnvironmentIsolation.NONE
        tools = ToolConfiguration(test_strategy="native")
        variant = render(recipe, PLATFORMS[platform.machine() == "aarch64"])
        try:
            made = variant.run_build(tools, out, channels, env_isolation=isolation)
        except Exception as why:
            # As where the channel cannot be reached. The recipe itself has been rendered.
            if system or "resolve dependencies" not in str(why):
                raise
            print(f"skip: no package was built: the compilers of conda-forge are unavailable: {why}", file=sys.stderr)
            return
        to.mkdir(parents=True, exist_ok=True)
        for path in made.packages:
            print(shutil.copyfile(path, to / Path(path).name))


def main():
    version, rust, *rest = sys.argv[1:]
    recipe = check(version, rust)
    print(f"recipe.yaml parses and renders for {' and '.join(PLATFORMS)}", file=sys.stderr)
    if rest:
        build(recipe, Path(rest[0]), "--system-tools" in rest)


if __name__ == "__main__":
    main()
