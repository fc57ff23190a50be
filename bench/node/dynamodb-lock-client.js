// node dynamodb-lock-client.js ENDPOINT MS: take and give back a lock in the table "peer" for so long, print pairs/s.
process.env.AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE = '1';
const http = require('http');
const AWS = require('aws-sdk');
const { FailOpen } = require('dynamodb-lock-client');

const [endpoint, ms] = process.argv.slice(2);
const client = new FailOpen({
    dynamodb: new AWS.DynamoDB.DocumentClient({
        endpoint, region: 'eu-west-1', credentials: new AWS.Credentials('a', 'b'),
        httpOptions: { agent: new http.Agent({ keepAlive: true }) },
    }),
    lockTable: 'peer', partitionKey: 'id', leaseDurationMs: 60000, heartbeatPeriodMs: 20000, owner: 'bench', retryCount: 0,
});
const acquire = () => new Promise((done, fail) => client.acquireLock('x', (error, lock) => error ? fail(error) : done(lock)));
const release = (lock) => new Promise((done, fail) => lock.release((error) => error ? fail(error) : done()));

async function main() {
    await release(await acquire()); // connected
    const began = process.hrtime.bigint();
    const took = () => Number(process.hrtime.bigint() - began);
    let pairs = 0;
    for (; took() < ms * 1e6; pairs++)
        await release(await acquire());
    console.log(pairs * 1e9 / took());
    process.exit(0);
}

main();
