/** Calls of the worker that must not end it: all leases depend on it. */

/** Calls a function. An error is a bug in this package, and is printed as a warning. */
export function safely(call: () => void, otherwise?: (error: unknown) => void): void {
  try {
    call();
  } catch (error) {
    process.emitWarning(error instanceof Error ? error : String(error));
    otherwise?.(error);
  }
}
