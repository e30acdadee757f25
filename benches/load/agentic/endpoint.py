"""A chat endpoint that records the tokens of each prompt: endpoint.py TOKENIZER_DIR PORT_FILE LOG.

Needs aiohttp and tokenizers. Each response has one frame per token, 2 ms apart.
"""
import asyncio
import json
import os
import sys
import time

from aiohttp import web
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(os.path.join(sys.argv[1], "tokenizer.json"))
log = open(sys.argv[3], "w", buffering=1)


def frame(choices, **more):
    return f"data: {json.dumps({'id': '1', 'object': 'chat.completion.chunk', 'created': 0, 'model': 'm', 'choices': choices, **more})}\n\n".encode()


async def chat(request):
    at = time.time()
    body = json.loads(await request.read())
    output = body.get("max_completion_tokens") or body.get("max_tokens")
    ids = [id for message in body["messages"] for id in tokenizer.encode(message["content"], add_special_tokens=False).ids]
    log.write(json.dumps({"at": at, "prompt": len(ids), "output": output, "ids": ids}) + "\n")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(output):
        await response.write(frame([{"index": 0, "delta": {"role": "assistant", "content": " x"}, "finish_reason": None}]))
        await asyncio.sleep(0.002)
    await response.write(frame([{"index": 0, "delta": {}, "finish_reason": "length"}]))
    usage = {"prompt_tokens": len(ids), "completion_tokens": output, "total_tokens": len(ids) + output}
    await response.write(frame([], usage=usage) + b"data: [DONE]\n\n")
    return response


async def models(_):
    return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})


async def main():
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(str(site._server.sockets[0].getsockname()[1]))
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    await asyncio.Event().wait()


asyncio.run(main())
