// Judges a page: its width, its contrasts, its headings, what it loads.
function channels(colour) {
    return colour.match(/[\d.]+/g).map(Number);
}
function luminance(colour) {
    const linear = channels(colour).slice(0, 3).map(part => {
        const value = part / 255;
        return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function contrast(one, other) {
    const [first, second] = [luminance(one), luminance(other)];
    return (Math.max(first, second) + 0.05) / (Math.min(first, second) + 0.05);
}
function paper(element) {
    for (let at = element; at; at = at.parentElement) {
        const colour = getComputedStyle(at).backgroundColor;
        const parts = channels(colour);
        if (parts.length === 3 || parts[3] === 1) return colour;
    }
    return "rgb(255, 255, 255)";
}
function judge() {
    const found = [];
    const root = document.documentElement;
    if (root.scrollWidth > root.clientWidth)
        found.push(`the page is ${root.scrollWidth} wide on a screen of ${root.clientWidth}`);
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let letters = 0;
    let least = 99;
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.textContent.trim()) continue;
        letters += texts.currentNode.textContent.length;
        const style = getComputedStyle(element);
        const value = contrast(style.color, paper(element));
        least = Math.min(least, value);
        if (value < 4.5) found.push(`contrast ${value.toFixed(2)} of "${texts.currentNode.textContent.trim()}"`);
        if (parseFloat(style.fontSize) < 12) found.push(`small text "${texts.currentNode.textContent.trim()}"`);
    }
    const links = [...document.querySelectorAll("a[href]")];
    for (const link of links) {
        if (!link.textContent.trim()) found.push("a link without a text");
    }
    for (const table of document.querySelectorAll(".wide"))
        if (table.scrollWidth > table.clientWidth && table.tabIndex < 0) found.push("no key scrolls a table");
    for (const table of document.querySelectorAll("table"))
        if (!table.caption || !table.querySelector("th[scope=col]")) found.push("a table without caption or heads");
    for (const picture of document.querySelectorAll("svg"))
        if (!picture.getAttribute("aria-label")) found.push("a picture without words");
    const titles = [...document.querySelectorAll("h1,h2,h3")].map(title => +title.tagName[1]);
    if (titles[0] !== 1 || titles.some((level, at) => at && level > titles[at - 1] + 1)) found.push(`headings ${titles}`);
    if (!document.title || !root.lang || !document.querySelector("main")) found.push("no title, language or main");
    const loaded = performance.getEntriesByType("resource").map(entry => entry.name);
    if (loaded.length) found.push(`it loads ${loaded}`);
    if (window.hostile) found.push("a text of the page ran as a script");
    return {
        found,
        width: innerWidth,
        dark: matchMedia("(prefers-color-scheme:dark)").matches,
        paper: getComputedStyle(document.body).backgroundColor,
        letters,
        links: links.length,
        least,
    };
}
judge()
