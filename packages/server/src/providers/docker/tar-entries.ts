const blockBytes = 512;

/** A tar of one program and one empty folder, both root's: what an agent volume holds. */
export function agentTar(options: { program: string; contents: Buffer; folder: string }): Buffer {
  const { contents } = options;
  const padding = Buffer.alloc((blockBytes - (contents.length % blockBytes)) % blockBytes);
  return Buffer.concat([
    header({ name: `${options.folder}/`, mode: 0o755, size: 0, type: "5" }),
    header({ name: options.program, mode: 0o755, size: contents.length, type: "0" }),
    contents,
    padding,
    // Two empty blocks end an archive.
    Buffer.alloc(2 * blockBytes),
  ]);
}

/** A ustar header. */
function header(entry: { name: string; mode: number; size: number; type: "0" | "5" }): Buffer {
  const block = Buffer.alloc(blockBytes);
  const octal = (value: number, at: number, digits: number) =>
    block.write(`${value.toString(8).padStart(digits, "0")}\0`, at, "latin1");
  block.write(entry.name, 0, 100, "utf8");
  octal(entry.mode, 100, 7);
  octal(0, 108, 7);
  octal(0, 116, 7);
  octal(entry.size, 124, 11);
  octal(0, 136, 11);
  block.write(entry.type, 156, "latin1");
  block.write("ustar\u000000", 257, "latin1");
  // The checksum is taken with its own field full of spaces.
  block.fill(" ", 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return block;
}
