"""ffi/recipe's tokenizers against the Python wheel of the same library, on tokenizer.json files of each kind that this script
trains: the same ids with the added vocabulary, the same ids where the caller names the special tokens, and no special token out
of plain text.

usage: compare_tokenizers.py LIBRARY [TEXTS] (in an environment of third_party/python/recipe.txt)
"""

import json
import random
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from compare import Ours

SPECIAL = ["<s>", "</s>", "<|im_start|>", "[INST]"]
WORDS = ["sea", "wave ", "\n", "\n\n", " ", "  ", "12", "你好", "é", "😀", "<b>", "{", "}", '"', "'s", "<", "/s>", "<|", "|>", "[", "INST]"]
CORPUS = [" ".join(w * n for w in ("sea", "wave", "shore", "wreck ", "12", "é", "<b>", "the")) for n in range(1, 9)] * 4


def byte_level():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL, show_progress=False))
    return t


def byte_fallback(scheme):
    letters = sorted(set("seawvhor12<b>the▁INT[]/|_"))
    vocab = {name: i for i, name in enumerate(["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] + letters + ["se", "sea", "▁sea"])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[("s", "e"), ("se", "a"), ("▁", "sea")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme == "normalizer":
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme == "always")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return t


def unigram():
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=80, special_tokens=["<unk>"] + SPECIAL, unk_token="<unk>", show_progress=False))
    return t


def word_piece():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.WhitespaceSplit()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]"] + SPECIAL, show_progress=False))
    return t


def marks_of(text, ids):
    """Where special tokens stand, leftmost longest, as the library's own matching finds them."""
    out, at = [], 0
    while at < len(text):
        found = next((s for s in SPECIAL if text.startswith(s, at)), None)
        if found:
            begin = len(text[:at].encode())
            out.append((begin, begin + len(found.encode()), ids[found]))
        at += len(found) if found else 1
    return out


def main():
    count, rng, checked = int(sys.argv[2]) if len(sys.argv) > 2 else 400, random.Random(7), 0
    kinds = {"byte level": byte_level(), "unigram": unigram(), "word piece": word_piece()}
    kinds |= {f"byte fallback, {scheme}": byte_fallback(scheme) for scheme in ("normalizer", "first", "always", "never")}
    for name, theirs in kinds.items():
        ours, content = Ours(sys.argv[1]), theirs.to_str()
        ours.open_tokenizer(content.encode())
        plain = Tokenizer.from_str(json.dumps({**json.loads(content), "added_tokens": []}))
        ids = {s: theirs.token_to_id(s) for s in SPECIAL}
        for _ in range(count):
            text = "".join(rng.choice(WORDS + SPECIAL * 2) for _ in range(rng.randrange(10)))
            usual = theirs.encode(text, add_special_tokens=False).ids
            assert ours.parse(text) == usual, (name, text)
            assert ours.encode(text, marks_of(text, ids)) == usual, (name, text, ours.encode(text, marks_of(text, ids)), usual)
            mine = ours.encode(text, [])
            assert not set(mine) & set(ids.values()), (name, text, mine)
            model = plain.encode(text, add_special_tokens=False).ids
            assert mine == model or set(model) & set(ids.values()), (name, text, mine, model)
            checked += 1
    print(f"{checked} texts over {len(kinds)} kinds of tokenizer: equal ids, no special token out of text")


if __name__ == "__main__":
    main()
