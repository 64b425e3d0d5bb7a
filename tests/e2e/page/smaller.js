// Returns a picture with its 256 most frequent colours: as PNG a quarter of what the browser writes. It runs in the
// browser, which has the compression. Argument and result are PNG in base64.
return (async (picture) => {
  const { width, height, data } = await pixels(picture);
  const colours = new Uint32Array(data.buffer);
  const palette = frequent(colours);
  const indexes = new Map(palette.map((colour, index) => [colour, index]));
  // Each line begins with the number of its filter: none.
  const lines = new Uint8Array((width + 1) * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const colour = colours[y * width + x];
      if (!indexes.has(colour)) indexes.set(colour, nearest(colour, palette));
      lines[y * (width + 1) + 1 + x] = indexes.get(colour);
    }
  }
  const size = new DataView(new ArrayBuffer(13));
  size.setUint32(0, width);
  size.setUint32(4, height);
  // Eight bits, by palette.
  size.setUint16(8, 0x0803);
  const parts = [
    new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
    chunk("IHDR", new Uint8Array(size.buffer)),
    chunk("PLTE", new Uint8Array(palette.flatMap(rgb))),
    chunk("IDAT", await deflated(lines)),
    chunk("IEND", new Uint8Array()),
  ];
  return (await new Blob(parts).bytes()).toBase64();
})(arguments[0]);

async function pixels(picture) {
  const bitmap = await createImageBitmap(new Blob([Uint8Array.fromBase64(picture)]));
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  canvas.drawImage(bitmap, 0, 0);
  return canvas.getImageData(0, 0, bitmap.width, bitmap.height);
}

function frequent(colours) {
  const counts = new Map();
  for (const colour of colours) counts.set(colour, (counts.get(colour) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  return sorted.slice(0, 256).map(([colour]) => colour);
}

function nearest(colour, palette) {
  const distance = (other) => rgb(other).reduce((sum, part, at) => sum + (part - rgb(colour)[at]) ** 2, 0);
  const distances = palette.map(distance);
  return distances.indexOf(Math.min(...distances));
}

/** Of the canvas's colours, which are little-endian. */
function rgb(colour) {
  return [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
}

async function deflated(bytes) {
  return new Response(new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"))).bytes();
}

/** A part of a PNG: its length, its name, its bytes, and their checksum (CRC-32). */
function chunk(name, bytes) {
  const named = new Uint8Array([...new TextEncoder().encode(name), ...bytes]);
  let checksum = ~0;
  for (const byte of named) {
    checksum ^= byte;
    for (let bit = 0; bit < 8; bit++) checksum = (checksum >>> 1) ^ (checksum & 1 ? 0xedb88320 : 0);
  }
  const chunk = new DataView(new ArrayBuffer(named.length + 8));
  chunk.setUint32(0, bytes.length);
  new Uint8Array(chunk.buffer).set(named, 4);
  chunk.setInt32(named.length + 4, ~checksum);
  return new Uint8Array(chunk.buffer);
}
