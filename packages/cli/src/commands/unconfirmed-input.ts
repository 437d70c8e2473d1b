/**
 * Input that was given and is not known to have arrived. `counted` once the service tells how much of it has: then what was sent
 * is held until it has arrived. Where nobody counts, it is let go of when it was sent.
 */
export class UnconfirmedInput {
  /** Those before `#first` are let go of. */
  #pieces: Uint8Array[] = [];
  #first = 0;
  #heldBytes = 0;
  /** Of the pieces held, how many were sent on this connection. */
  #sentPieces = 0;
  /** Offset of the first piece in the whole input. */
  #from = 0;
  #taken = 0;
  #counted: boolean | undefined;

  get heldBytes(): number {
    return this.#heldBytes;
  }
  get counted(): boolean {
    return this.#counted === true;
  }
  get mayBeCounted(): boolean {
    return this.#counted !== false;
  }
  /** Whether everything that was sent has arrived. */
  get allArrived(): boolean {
    return this.#sentPieces === 0;
  }

  give(data: Uint8Array): void {
    this.#pieces.push(data);
    this.#heldBytes += data.length;
  }

  /** What is to be sent next. */
  next(): Uint8Array | undefined {
    return this.#pieces[this.#first + this.#sentPieces];
  }

  /** What `next` gave was sent. */
  sent(): void {
    this.#sentPieces += 1;
    if (this.#counted === false) this.#drop();
    else this.#release();
  }

  notCounted(): void {
    this.#counted = false;
    while (this.#sentPieces > 0) this.#drop();
  }

  arrived(taken: number): void {
    this.#counted = true;
    this.#taken = taken;
    this.#release();
  }

  /** On a connection anew: what comes after `taken` is sent again. @returns false when that is not held, or was never given. */
  goOnAt(taken: number): boolean {
    if (taken < this.#from || taken > this.#from + this.#heldBytes) {
      while (this.#sentPieces > 0) this.#drop();
      this.#from = taken;
      return false;
    }
    this.arrived(taken);
    this.#sentPieces = 0;
    const first = this.#pieces[this.#first];
    if (first === undefined || taken === this.#from) return true;
    this.#pieces[this.#first] = first.subarray(taken - this.#from);
    this.#heldBytes -= taken - this.#from;
    this.#from = taken;
    return true;
  }

  /** Lets go of what has arrived. */
  #release(): void {
    for (let piece = this.#pieces[this.#first]; piece !== undefined; piece = this.#pieces[this.#first]) {
      if (this.#sentPieces === 0 || this.#from + piece.length > this.#taken) return;
      this.#drop();
    }
  }

  #drop(): void {
    const length = this.#pieces[this.#first]?.length ?? 0;
    this.#from += length;
    this.#heldBytes -= length;
    this.#sentPieces -= 1;
    this.#first += 1;
    if (this.#first * 2 < this.#pieces.length) return;
    this.#pieces = this.#pieces.slice(this.#first);
    this.#first = 0;
  }
}
