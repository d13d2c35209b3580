// openai for Node against a running server: node node_client.mjs URL
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { readFileSync } from "node:fs";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const Town = z.object({ name: z.string().max(12), size: z.number().int().min(0).max(9999) });
const messages = [{ role: "user", content: "Name a town and how many people live in it." }];

const answer = await client.chat.completions.parse({
  model: "demo", messages, max_tokens: 200, response_format: zodResponseFormat(Town, "town"),
});
Town.parse(answer.choices[0].message.parsed);
const response = await client.responses.parse({
  model: "demo", input: messages, max_output_tokens: 200, text: { format: zodTextFormat(Town, "town") },
});
Town.parse(response.output_parsed);
const { version } = JSON.parse(readFileSync(new URL("node_modules/openai/package.json", import.meta.url)));
console.log(`passed: openai for Node ${version}, parse`);
