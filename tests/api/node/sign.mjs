// Signs webhooks as their senders do: stdin has a list of {scheme, secret, body, id, time}, stdout gets their headers.
import { readFile } from "node:fs/promises";
import { Webhook } from "standardwebhooks";
import { sign as signForGitHub } from "@octokit/webhooks-methods";
import Stripe from "stripe";

const schemes = {
  standard: ({ secret, body, id, time }) => ({
    "webhook-id": id,
    "webhook-timestamp": String(time),
    "webhook-signature": new Webhook(secret).sign(id, new Date(time * 1000), body),
  }),
  github: async ({ secret, body, id }) => ({
    "X-GitHub-Delivery": id,
    "X-Hub-Signature-256": await signForGitHub(secret, body),
  }),
  stripe: ({ secret, body, time }) => ({
    "Stripe-Signature": new Stripe("sk_test_x").webhooks.generateTestHeaderString({ payload: body, secret, timestamp: time }),
  }),
};

const messages = JSON.parse(await readFile("/dev/stdin", "utf8"));
console.log(JSON.stringify(await Promise.all(messages.map((m) => schemes[m.scheme](m)))));
