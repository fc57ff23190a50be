// node proper-lockfile.js DIR MS: take and give back a lock in DIR for so long, print pairs/s.
const fs = require('fs');
const path = require('path');
const lockfile = require('proper-lockfile');

async function main(dir, ms) {
    fs.mkdirSync(dir, { recursive: true });
    const file = path.join(dir, 'x');
    fs.writeFileSync(file, '');
    const began = process.hrtime.bigint();
    const took = () => Number(process.hrtime.bigint() - began);
    let pairs = 0;
    for (; took() < ms * 1e6; pairs++) {
        const release = await lockfile.lock(file);
        await release();
    }
    console.log(pairs * 1e9 / took());
}

main(process.argv[2], Number(process.argv[3]));
