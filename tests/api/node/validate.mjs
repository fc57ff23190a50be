import { readFile } from "node:fs/promises";
import { Validator } from "@seriousme/openapi-schema-validator";

const result = await new Validator().validate(JSON.parse(await readFile(process.argv[2], "utf8")));
if (!result.valid) {
  console.error(JSON.stringify(result.errors, null, 1));
  process.exit(1);
}
