// The texts of a page that stand out from their ground by less than 4.5 to 1 (WCAG 2, AA).
() => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const channels = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255, 255];
  };
  const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  const ratio = (node) => {
    const [more, less] = [luminance(channels(getComputedStyle(node).color)), luminance(ground(node))].sort((a, b) => b - a);
    return (more + 0.05) / (less + 0.05);
  };
  return [...document.querySelectorAll('body *')]
    .filter((node) => !node.closest('svg') && node.checkVisibility() && hasText(node) && ratio(node) < 4.5)
    .map((node) => `${node.className} ${node.textContent.slice(0, 40)}`);
}
