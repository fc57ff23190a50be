// node work.js PEER URL rate N BATCH CLIENTS MS: in an empty database, N no-op jobs are scheduled and then worked, in
// batches or (BATCH 1) one by one, for MS at most. Prints how many were scheduled and worked per second, and the
// median and the 99th percentile of the time that a claim took, in ms.
//
// node work.js PEER URL lag N MS: N jobs fall due, evenly spread over MS; prints how late the median of them and the
// 99th percentile began, in ms. With settings for throughput (BATCH) and the intervals for polling as they come.
const pg = require('pg');

const TASK = 'noop';
const INSERT = 1000; // jobs in one call, where many are scheduled at once

const now = () => Number(process.hrtime.bigint()) / 1e6;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function inParallel(clients, fn) {
    await Promise.all(Array.from({ length: clients }, fn));
}

// Settings: https://worker.graphile.org/docs/performance
class GraphileWorker {
    constructor(options) {
        Object.assign(this, options);
        this.lib = require('graphile-worker');
        this.logger = new this.lib.Logger(() => () => {});
        this.claims = [];
    }

    async open() {
        this.pool = new pg.Pool({ connectionString: this.url, max: 25 });
        this.pool.on('error', (error) => { throw error; });
        this.pool.on('connect', (client) => this.timeClaims(client));
        this.utils = await this.lib.makeWorkerUtils({ pgPool: this.pool, logger: this.logger });
        await this.utils.migrate();
    }

    // A claim is a query of its own, which its library sends.
    timeClaims(client) {
        const query = client.query.bind(client);
        client.query = (...args) => {
            const text = args[0]?.text ?? args[0];
            const result = query(...args);
            if (typeof text === 'string' && text.includes('jobs.is_available = true') && result?.then) {
                const began = now();
                result.then(() => this.claims.push(now() - began), () => {});
            }
            return result;
        };
    }

    schedule(runAt) {
        return this.utils.addJob(TASK, {}, runAt && { runAt });
    }

    scheduleMany(runAts) {
        return this.utils.addJobs(runAts.map((runAt) => ({ identifier: TASK, payload: {}, runAt })));
    }

    start(onJob) {
        const batched = this.batch > 1;
        return this.lib.run({
            pgPool: this.pool,
            logger: this.logger,
            noHandleSignals: true,
            parsedCronItems: [],
            taskList: { [TASK]: (_payload, helpers) => onJob(helpers.job.run_at) },
            preset: {
                worker: {
                    concurrentJobs: 24,
                    localQueue: { size: batched ? Math.max(this.batch, 500) : -1 },
                    completeJobBatchDelay: batched ? 0 : -1,
                    failJobBatchDelay: batched ? 0 : -1,
                },
            },
        });
    }

    async left() {
        const { rows } = await this.pool.query('SELECT count(*)::int AS n FROM graphile_worker._private_jobs');
        return rows[0].n;
    }

    async work(n, ms) {
        let begun = 0;
        const until = now() + ms;
        const runner = await this.start(() => void begun++);
        while (begun < n && now() < until) await sleep(5);
        await runner.stop(); // what has ended is written by then, where that is done in batches
        while (this.batch === 1 && begun === n && (await this.left()) > 0) await sleep(1);
        const took = now();
        return { worked: n - (await this.left()), ended: took };
    }

    async lag(n, onLag) {
        const runner = await this.start((runAt) => onLag(Date.now() - runAt.getTime()));
        return () => runner.stop();
    }

    close() {
        return this.pool.end();
    }
}

// Its own loop waits for at least half a second between two batches: so it is asked by fetch() and complete().
class PgBoss {
    constructor(options) {
        Object.assign(this, options);
        this.lib = require('pg-boss');
        this.claims = [];
    }

    async open() {
        this.boss = new this.lib({ connectionString: this.url, max: Math.max(this.clients, 2), supervise: false, schedule: false });
        this.boss.on('error', (error) => { throw error; });
        await this.boss.start();
        await this.boss.createQueue(TASK);
    }

    schedule(startAfter) {
        return this.boss.send(TASK, {}, startAfter && { startAfter });
    }

    scheduleMany(startAfters) {
        return this.boss.insert(startAfters.map((startAfter) => ({ name: TASK, data: {}, startAfter })));
    }

    async work(n, ms) {
        let worked = 0;
        const until = now() + ms;
        await inParallel(this.clients, async () => {
            while (worked < n && now() < until) {
                const began = now();
                const jobs = await this.boss.fetch(TASK, { batchSize: this.batch });
                if (!jobs.length) continue;
                this.claims.push(now() - began);
                await this.boss.complete(TASK, jobs.map((job) => job.id));
                worked += jobs.length;
            }
        });
        return { worked, ended: now() };
    }

    async lag(n, onLag) {
        await this.boss.work(TASK, { batchSize: this.batch, includeMetadata: true },
            async (jobs) => jobs.forEach((job) => onLag(Date.now() - job.startAfter.getTime())));
        return () => {};
    }

    close() {
        return this.boss.stop({ graceful: false, wait: false });
    }
}

const peers = { 'graphile-worker': GraphileWorker, 'pg-boss': PgBoss };

async function schedule(peer, runAts) {
    if (peer.batch > 1) {
        for (let i = 0; i < runAts.length; i += INSERT) await peer.scheduleMany(runAts.slice(i, i + INSERT));
        return;
    }
    let i = 0;
    await inParallel(peer.clients, async () => {
        while (i < runAts.length) await peer.schedule(runAts[i++]);
    });
}

// As autovacuum does in a while.
async function analyze(url) {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    await client.query('ANALYZE');
    await client.end();
}

function quantile(values, q) {
    const sorted = [...values].sort((a, b) => a - b);
    return sorted.length ? sorted[Math.round(q * (sorted.length - 1))] : 0;
}

async function rate(peer, n, ms) {
    const began = now();
    await schedule(peer, Array(n).fill(undefined));
    const scheduling = (now() - began) / n;
    await analyze(peer.url);
    const working = now();
    const { worked, ended } = await peer.work(n, ms);
    console.log(1000 / scheduling, 1000 * worked / (ended - working), quantile(peer.claims, 0.5), quantile(peer.claims, 0.99));
}

async function lag(peer, n, ms) {
    const lags = [], first = Date.now() + 1000;
    await schedule(peer, Array.from({ length: n }, (_, i) => new Date(first + i * ms / n)));
    await analyze(peer.url);
    const stop = await peer.lag(n, (late) => void lags.push(late));
    while (lags.length < n) await sleep(20);
    await stop();
    console.log(quantile(lags, 0.5), quantile(lags, 0.99));
}

async function main(name, url, what, n, ...rest) {
    const [batch, clients, ms] = what === 'rate' ? rest.map(Number) : [100, 2, Number(rest[0])];
    const peer = new peers[name]({ url, batch, clients });
    await peer.open();
    await (what === 'rate' ? rate : lag)(peer, Number(n), ms);
    await peer.close();
    process.exit(0);
}

main(...process.argv.slice(2)).catch((error) => {
    console.error(error);
    process.exit(1);
});
