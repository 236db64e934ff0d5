"""Where a grammar is stricter than its schema: what an answer then cannot be is no error. Data only."""

# Properties come in the schema's order; an integer is written without a fraction; a constant as the schema writes it.
REFUSED_ALTHOUGH_VALID = {
    "allOf: allOf: allOf",
    "allOf: allOf with base schema: valid",
    "const: const with object: same object with different property order is valid",
    "const: const with 0 does not match other zero-like types: float zero is valid",
    "const: const with 1 does not match true: float one is valid",
    "const: const with -2.0 matches integer and float types: float -2.0 is valid",
    "enum: enum with 0 does not match false: float zero is valid",
    "enum: enum with [0] does not match [false]: [0.0] is valid",
    "enum: enum with 1 does not match true: float one is valid",
    "enum: enum with [1] does not match [true]: [1.0] is valid",
    "type: integer type matches integers: a float with zero fractional part is an integer",
}
