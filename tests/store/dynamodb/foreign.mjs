// The seed's client, on the official SDK: its PutItem and its DeleteItem, with its conditions and no others.
//
//     node foreign.mjs ENDPOINT TABLE put NAME OWNER SECONDS [LATER]  prints the LockID, or "held"; the reaper may
//                                                             have it LATER seconds after it has expired
//     node foreign.mjs ENDPOINT TABLE delete NAME OWNER LOCKID        prints "done", or "not yours"
//     node foreign.mjs ENDPOINT TABLE wipe NAME                       what DynamoDB's TTL reaper does
import { randomUUID } from "node:crypto";
import { DeleteItemCommand, DynamoDBClient, PutItemCommand } from "@aws-sdk/client-dynamodb";

const [endpoint, table, verb, name, owner, last, later = 0] = process.argv.slice(2);
const client = new DynamoDBClient({
  endpoint,
  region: "eu-west-1",
  credentials: { accessKeyId: "a", secretAccessKey: "b" },
});
const key = { PK: { S: `LOCK#${name}` }, SK: { S: "LOCK" } };
const rfc3339 = (ms) => new Date(ms).toISOString().replace(/\.\d+Z$/, "Z"); // as Go's time.RFC3339

async function put() {
  const now = Date.now();
  const expires = now + 1000 * Number(last);
  const lockId = randomUUID();
  await client.send(new PutItemCommand({
    TableName: table,
    Item: {
      ...key,
      LockID: { S: lockId },
      Owner: { S: owner },
      AcquiredAt: { S: rfc3339(now) },
      ExpiresAt: { S: rfc3339(expires) },
      TTL: { N: String(Math.floor(expires / 1000) + Number(later)) },
    },
    ConditionExpression: "attribute_not_exists(PK) OR ExpiresAt < :now",
    ExpressionAttributeValues: { ":now": { S: rfc3339(now) } },
  }));
  return lockId;
}

async function remove() {
  await client.send(new DeleteItemCommand({
    TableName: table,
    Key: key,
    ConditionExpression: "LockID = :lockId AND #owner = :owner",
    ExpressionAttributeNames: { "#owner": "Owner" },
    ExpressionAttributeValues: { ":lockId": { S: last }, ":owner": { S: owner } },
  }));
  return "done";
}

async function wipe() {
  await client.send(new DeleteItemCommand({ TableName: table, Key: key }));
  return "done";
}

try {
  console.log(await { put, delete: remove, wipe }[verb]());
} catch (error) {
  if (error.name !== "ConditionalCheckFailedException") throw error;
  console.log(verb === "put" ? "held" : "not yours");
}
