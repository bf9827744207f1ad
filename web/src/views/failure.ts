// What a view shows when it has nothing to show.

import { NotReady } from "../api";
import { panel } from "../dom";

/** The program's messages begin in lower case and have no full stop. */
function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** `live`: the source is read again and again. */
export function failure(error: unknown, live = false): HTMLElement {
  if (error instanceof NotReady) {
    const { state, why } = error.state;
    if (state === "loading") return panel("Being read", "The console is still reading. This page shows the figures as soon as they are there.");
    if (state === "absent") return panel("Nothing to show yet", sentence(why ?? ""));
    const next = live ? "The console tries again, and this page shows the figures as soon as they are there." : "Correct this, then start the console again.";
    return panel("Cannot be read", `${sentence(why ?? "")} ${next}`, true);
  }
  return panel("No answer", error instanceof Error ? error.message : String(error), true);
}
