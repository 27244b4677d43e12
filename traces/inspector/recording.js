// What the page carries of a recording: an index, pieces of moments and stories, each unpacked when it is first wanted.
"use strict";
const KilburnRecording = (() => {
  const MOST_KEPT = 12; // unpacked pieces

  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  };

  class Recording {
    constructor(index) {
      this.index = index;
      this.kept = new Map();
      this.place = new Map(index.requests.id.map((id, at) => [id, at]));
    }

    static async open() { return new Recording(await unpack("index")); }

    get last() { return this.index.moments - 1; }

    // The first moment at which what happened by `step` can be seen.
    momentOf(step) { return Math.min(this.last, Math.ceil(step / this.index.every)); }

    // Number of the piece that holds a moment.
    pieceOf(moment) {
      const { starts } = this.index;
      let low = 0, high = starts.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (starts[middle] <= moment) low = middle; else high = middle - 1;
      }
      return low;
    }

    async piece(number) { return this.get(`piece-${number}`); }

    // Lines of the request at place `at` of the index: [step, ms, kind, text].
    async story(at) {
      const { stories } = this.index;
      return (await this.get(`stories-${Math.floor(at / stories)}`))[at % stories];
    }

    named(numbers) { return Object.fromEntries(this.index.numbers.map((name, i) => [name, numbers[i]])); }

    get(id) {
      const found = this.kept.get(id) || unpack(id);
      this.kept.delete(id);
      this.kept.set(id, found);
      if (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
      return found;
    }
  }

  return Recording;
})();
