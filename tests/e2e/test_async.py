"""The async clients of both SDKs: streams that run side by side on one event loop."""

import asyncio

import anthropic
import openai

from conftest import wait_for


def test_async_openai(scripted):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="sk-none", max_retries=0, timeout=60) as oai:
            async def chat():
                stream = await oai.chat.completions.create(model="scripted", stream=True, stream_options={"include_usage": True},
                                                           messages=[{"role": "user", "content": "say-slowly"}])
                chunks = [chunk async for chunk in stream]
                assert chunks[-1].usage.completion_tokens > 0
                return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

            async def responses():
                async with oai.responses.stream(model="scripted", input="say-slowly") as stream:
                    deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
                    final = await stream.get_final_response()
                assert final.status == "completed" and final.output_text == "".join(deltas)
                return final.output_text
            return await asyncio.gather(chat(), responses(), chat(), responses())
    assert set(asyncio.run(run())) == {"one two three four five six seven eight nine ten"}


def test_async_openai_gives_a_stream_up(scripted):
    """Closing the stream is a disconnect: the engine is free again."""
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="sk-none", max_retries=0, timeout=60) as oai:
            stream = await oai.chat.completions.create(model="scripted", stream=True, messages=[{"role": "user", "content": "say-forever"}])
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    break
            await stream.close()
    asyncio.run(run())
    wait_for(lambda: scripted.metric_sum("nereid_engine_running") == 0, 20, "engine is free again")


def test_async_anthropic(scripted):
    async def run():
        async with anthropic.AsyncAnthropic(base_url=scripted.url, api_key="sk-none", max_retries=0, timeout=60) as claude:
            async def message():
                async with claude.messages.stream(model="scripted", max_tokens=500,
                                                  messages=[{"role": "user", "content": "say-slowly"}]) as stream:
                    text = "".join([piece async for piece in stream.text_stream])
                    final = await stream.get_final_message()
                assert final.content[0].text == text and final.stop_reason == "end_turn"
                return text
            return await asyncio.gather(message(), message())
    assert set(asyncio.run(run())) == {"one two three four five six seven eight nine ten"}
