// A safe part of Markdown as elements: headings, lists, bold, emphasis, code and paragraphs. Everything else is text.
import { h } from "./dom.js";

const INLINE = /(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*|_[^_\s][^_]*_(?!\w))/;

function inline(text) {
  return text.split(INLINE).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) return h("strong", {}, part.slice(2, -2));
    if (part.length > 2 && INLINE.test(part) && /^[*_]/.test(part)) return h("em", {}, part.slice(1, -1));
    return part;
  });
}

export function rendered(source) {
  const blocks = [];
  let paragraph = [];
  let list = null;
  let code = null;
  const end = () => {
    if (paragraph.length) blocks.push(h("p", {}, inline(paragraph.join(" "))));
    paragraph = [];
    list = null;
  };
  for (const line of source.split(/\r?\n/)) {
    if (/^\s*```/.test(line)) {
      end();
      if (code) blocks.push(h("pre", { tabindex: 0 }, code.join("\n")));
      code = code ? null : [];
      continue;
    }
    if (code) {
      code.push(line);
      continue;
    }
    const heading = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
    const item = line.match(/^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/);
    if (!line.trim()) end();
    else if (heading) {
      end();
      blocks.push(h(heading[1].length < 2 ? "h3" : "h4", {}, inline(heading[2])));
    } else if (item) {
      const tag = item[1] ? "ol" : "ul";
      if (paragraph.length || list?.localName !== tag) {
        end();
        list = h(tag, {});
        blocks.push(list);
      }
      list.append(h("li", {}, inline(item[2])));
    } else if (list) list.lastChild.append(" ", ...inline(line.trim()));
    else paragraph.push(line.trim());
  }
  end();
  if (code) blocks.push(h("pre", { tabindex: 0 }, code.join("\n")));
  return h("div", { class: "markdown" }, blocks);
}
