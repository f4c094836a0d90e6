"""What ffi/recipe brings is its makers' own: prompts and ids of DeepSeek V4 and V4.1 equal those of deepseek-recipe's Python
wheel, ids of any tokenizer.json those of Hugging Face's (tests/recipe/compare*.py, in an environment of their own)."""

import subprocess

import pytest

from conftest import CACHE, ROOT


@pytest.mark.parametrize("script, says", [("compare.py", "equal to the byte"), ("compare_tokenizers.py", "no special token out of text")])
def test_equal_to_the_makers_wheel(script, says):
    venv = f'ROOT={ROOT}; cd "$ROOT"; source tools/dev/lib.sh; venv recipe "$ROOT/third_party/python/recipe.txt"'
    folder = subprocess.run(["bash", "-c", venv], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    library = CACHE / "third_party/rust/libnereid_recipe.so"
    assert library.exists(), f"{library} is missing. Mend: ./dev recipe"
    done = subprocess.run([f"{folder}/bin/python", ROOT / "tests/recipe" / script, library, "400"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert says in done.stdout
