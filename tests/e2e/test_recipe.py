"""Prompts for DeepSeek V4 and V4.1 are those of the makers' own Python wheel: tests/recipe/compare.py in an environment of
its own."""

import subprocess

from conftest import CACHE, ROOT


def test_prompts_and_ids_equal_the_makers_wheel():
    script = f'ROOT={ROOT}; cd "$ROOT"; source tools/dev/lib.sh; venv recipe "$ROOT/third_party/python/recipe.txt"'
    folder = subprocess.run(["bash", "-c", script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    library = CACHE / "third_party/rust/libnereid_recipe.so"
    assert library.exists(), f"{library} is missing. Mend: ./dev recipe"
    done = subprocess.run([f"{folder}/bin/python", ROOT / "tests/recipe/compare.py", library, "400"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "equal to the byte" in done.stdout
