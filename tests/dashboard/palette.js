// Takes a PNG's address; returns its size, at most 256 colours, and a byte a pixel, in base64.
async (url) => {
  const picture = await createImageBitmap(await (await fetch(url)).blob());
  const { width, height } = picture, canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(canvas.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const colours = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, 256);
  const apart = (a, b) => [0, 8, 16].reduce((sum, by) => sum + (((a >> by) & 255) - ((b >> by) & 255)) ** 2, 0);
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
