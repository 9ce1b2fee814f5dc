import { vi } from "vitest";

// Wait until no expectation fails: for minutes on a busy machine.
export const until = (expectation) => vi.waitFor(expectation, { timeout: 60_000 });
