// A service that guards a value in Redis, as docs/fencing-http.md shows it. $REDIS is the server, $PORT its own port. The
// writes of /unfenced are the same without the fence.

import express from "express";
import { answerStale, requireToken } from "leasehold/express";
import { createClient } from "redis";

const redis = await createClient({ url: process.env.REDIS }).connect();

const app = express();

// What the story needs besides.
app.put("/unfenced", requireToken(), express.text(), async (req, res) => {
  await redis.sendCommand(["SET", "{report}:body", req.body]);
  res.sendStatus(204);
});
app.put("/forgotten", requireToken(), async () => {
  // 0 is not a token.
  await redis.sendCommand(["FCALL", "leasehold_fence", "1", "{report}:fence", "0", "GET"]);
});

app.use(requireToken());
app.put("/report", express.text(), async (req, res) => {
  const fence = ["2", "{report}:fence", "{report}:body", `${req.fencingToken}`];
  await redis.sendCommand(["FCALL", "leasehold_fence", ...fence, "SET", "{report}:body", req.body]);
  res.sendStatus(204);
});
app.use(answerStale); // after the routes

app.listen(Number(process.env.PORT), "127.0.0.1");
