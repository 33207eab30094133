export * from "./distlock.js";
