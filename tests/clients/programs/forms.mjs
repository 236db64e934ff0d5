// The form of answers that programs in JavaScript ask for; the same as forms.py.

import { check, equal } from "./report.mjs";

export const FORM_QUESTION = "What is the weather in Paris? Answer as JSON.";
const CITIES = ["Paris", "Berlin", "Oslo"];
const SKIES = ["sunny", "cloudy", "rainy"];
export const SCHEMA = {
  type: "object",
  properties: {
    city: { type: "string", enum: CITIES },
    sky: { type: "string", enum: SKIES },
    degrees: { type: "integer", minimum: 0, maximum: 40 },
    certain: { type: "boolean" },
  },
  required: ["city", "sky", "degrees", "certain"],
  additionalProperties: false,
};
export const RESPONSE_FORMAT = {
  type: "json_schema", json_schema: { name: "report", schema: SCHEMA, strict: true },
};
export const REPORT_TOOL = {
  type: "function",
  function: { name: "report", description: "Reports the weather.", parameters: SCHEMA, strict: true },
};

export function checkReport(values) {
  equal(Object.keys(values).sort(), [...SCHEMA.required].sort(), "the keys of the report");
  const { city, sky, degrees, certain } = values;
  const fits = CITIES.includes(city) && SKIES.includes(sky) && Number.isInteger(degrees) && typeof certain === "boolean";
  check(fits && degrees >= 0 && degrees <= 40, `the report is ${JSON.stringify(values)}`);
}
