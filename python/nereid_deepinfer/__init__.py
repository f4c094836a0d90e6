"""The agent that puts DeepInfer's LLMEngine behind Nereid's engine-wire. See docs/ops/deepinfer.md."""
