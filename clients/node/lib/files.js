"use strict";

/** Tokens and certificates, which are read again when their files change. */

const fs = require("node:fs");
const { stat, readFile } = require("node:fs/promises");
const tls = require("node:tls");

const LOOK = 1000; // ms between looks at the files

/** Files that are read as one. check throws if what they contain is of no use. */
class Files {
  #paths;
  #check;
  #contents;
  #versions;
  #looked;
  #looking;

  /** It reads the files at once, so that a wrong path is an error where it was written. */
  constructor(paths, check) {
    this.#paths = paths;
    this.#check = check;
    this.#versions = paths.map((p) => version(fs.statSync(p)));
    this.#contents = check(paths.map((p) => fs.readFileSync(p, "utf8")));
    this.#looked = performance.now();
  }

  /** Returns what the files contain. It looks at them about once a second, or now. */
  async get(now = false) {
    if (now || performance.now() - this.#looked >= LOOK) {
      this.#looking ??= this.#look().finally(() => (this.#looking = undefined));
      await this.#looking;
    }
    return this.#contents;
  }

  /** Files that are gone or half-written change nothing: the next look may find them whole. */
  async #look() {
    try {
      const versions = (await Promise.all(this.#paths.map((p) => stat(p)))).map(version);
      if (versions.join() !== this.#versions.join()) {
        this.#contents = this.#check(await Promise.all(this.#paths.map((p) => readFile(p, "utf8"))));
        this.#versions = versions;
      }
    } catch {
      // as it was
    }
    this.#looked = performance.now();
  }
}

const version = ({ mtimeMs, ctimeMs, size, ino }) => `${mtimeMs} ${ctimeMs} ${size} ${ino}`;

/** What a client shows to servers: a token, and options for TLS. */
class Access {
  #token;
  #tokenFile;
  #tls;
  #tlsFiles;

  constructor({ token, tokenFile, tls: options, certFile, keyFile, caFile }) {
    if (token !== undefined && tokenFile !== undefined) throw new TypeError("token and tokenFile are both given: want one of them");
    if ((certFile === undefined) !== (keyFile === undefined)) throw new TypeError("certFile and keyFile belong together: one is missing");
    this.#token = token === undefined ? undefined : bearer(token);
    if (tokenFile !== undefined) this.#tokenFile = new Files([tokenFile], ([text]) => bearer(text.trim()));
    this.#tls = options;
    const named = Object.entries({ cert: certFile, key: keyFile, ca: caFile }).filter(([, file]) => file !== undefined);
    if (named.length > 0) {
      this.#tlsFiles = new Files(named.map(([, file]) => file), (texts) => {
        named.forEach(([, file], i) => wantWhole(file, texts[i]));
        const pem = Object.fromEntries(named.map(([option], i) => [option, texts[i]]));
        tls.createSecureContext({ ...options, ...pem }); // a key of another certificate is an error
        return pem;
      });
    }
  }

  /** Returns the value of the header Authorization, if there is one. */
  async token(now) { return this.#tokenFile ? this.#tokenFile.get(now) : this.#token; }

  /** Returns what is read from files. What has changed is another value. */
  async files() { return [await this.#tokenFile?.get(), await this.#tlsFiles?.get()]; }

  async tls() { return { ...this.#tls, ...(await this.#tlsFiles?.get()) }; }
}

/** Refuses a text without PEM or with half a block: node:tls would ignore it, and trust the system's authorities in place of none. */
function wantWhole(file, text) {
  const [begins, ends] = ["BEGIN", "END"].map((edge) => text.split(`-----${edge} `).length - 1);
  if (begins === 0 || begins !== ends) throw new TypeError(`${file} has no PEM, or half of one: want whole blocks from -----BEGIN to -----END`);
}

function bearer(token) {
  if (typeof token !== "string" || !/^[!-~]+$/.test(token)) {
    throw new TypeError("the token is empty, or has characters that a header can't have");
  }
  return `Bearer ${token}`;
}

module.exports = { Access };
