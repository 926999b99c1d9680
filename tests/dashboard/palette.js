// Takes a PNG's address; returns its size, at most 256 colours, and a byte a pixel, in base64.
async (url) => {
  const picture = await createImageBitmap(await (await fetch(url)).blob());
  const { width, height } = picture, canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(canvas.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const apart = (a, b) => ((a & 255) - (b & 255)) ** 2 + (((a >> 8) & 255) - ((b >> 8) & 255)) ** 2 + (((a >> 16) & 255) - ((b >> 16) & 255)) ** 2;
  const common = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
  let colours = common;
  for (let near = 4; colours.length > 256; near *= 1.5) { // rare colours stay, unless another is near
    colours = common.slice(0, 96);
    for (const one of common.slice(96)) if (colours.every((other) => apart(one, other) > near)) colours.push(one);
  }
  const place = new Map(colours.map((colour, index) => [colour, index]));
  for (const pixel of counts.keys()) {
    if (place.has(pixel)) continue;
    let best = 0;
    for (let index = 1; index < colours.length; index++) if (apart(pixel, colours[index]) < apart(pixel, colours[best])) best = index;
    place.set(pixel, best);
  }
  let text = "";
  for (const pixel of pixels) text += String.fromCharCode(place.get(pixel));
  return { width, height, colours, pixels: btoa(text) };
}
