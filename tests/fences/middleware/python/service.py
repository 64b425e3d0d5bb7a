"""A service that guards a row of PostgreSQL, as docs/fencing-http.md shows it.

$DATABASE is the database. The writes of /unfenced are the same without the fence.
"""

import os

import psycopg
from fastapi import FastAPI, Request
from leasehold.asgi import FencingTokens


async def connect() -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(os.environ["DATABASE"])


app = FastAPI()
app.add_middleware(FencingTokens)


@app.put("/report")
async def put(request: Request) -> None:
    body, token = (await request.body()).decode(), request.state.fencing_token
    async with await connect() as connection, connection.pipeline():  # one transaction
        await connection.execute("SELECT leasehold.fence('report', %s)", (token,))
        await connection.execute("UPDATE report SET body = %s", (body,))


@app.put("/unfenced")
async def put_unfenced(request: Request) -> None:
    body = (await request.body()).decode()
    async with await connect() as connection:
        await connection.execute("UPDATE report SET body = %s", (body,))


@app.put("/forgotten")
async def put_forgotten() -> None:
    async with await connect() as connection:
        # The trigger of this table refuses writes beside the fence.
        await connection.execute("UPDATE payout SET amount = 20")
