"""Contrast of each text of a panel against what is painted behind it: WCAG 2.2."""

from axe_playwright_python.base import AXE_SCRIPT

CONTRAST = """() => {
    const canvas = document.createElement('canvas'), paint = canvas.getContext('2d', { willReadFrequently: true });
    canvas.width = canvas.height = 1;
    const over = (colours, ink = 'transparent', solid = 1) => {
        paint.clearRect(0, 0, 1, 1);
        paint.globalAlpha = 1;
        for (const colour of colours) { paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1); }
        paint.globalAlpha = solid;
        paint.fillStyle = ink;
        paint.fillRect(0, 0, 1, 1);
        return [...paint.getImageData(0, 0, 1, 1).data];
    };
    const light = (rgb) => {
        const [r, g, b] = rgb.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const seen = [];
    for (const each of document.querySelectorAll('.tnb *, .tnb')) {
        const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || each.matches('input, select');
        const faint = each.closest(':disabled, [aria-disabled=true], style, .tnb-hidden, .tnb-said') || !each.checkVisibility({ opacityProperty: true, visibilityProperty: true });
        if (!own || faint || !each.getClientRects().length || each.type === 'checkbox') continue;
        const behind = [];
        let solid = 1;
        for (let at = each; at; at = at.parentElement) {
            behind.unshift(getComputedStyle(at).backgroundColor);
            solid *= getComputedStyle(at).opacity;
        }
        const point = each.matches('.textpoint text[text-anchor=middle]') && each.closest('.trace').querySelector('.point');
        if (point) behind.push(getComputedStyle(point).fill);  // a number in a mark
        const ground = over(['white', ...behind]), style = getComputedStyle(each);
        const ink = each instanceof SVGElement ? style.fill : style.color;
        const a = light(over(['white', ...behind], ink, solid)), b = light(ground);
        seen.push({ ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text: (each.textContent || each.value || '').trim().slice(0, 30),
                    name: each.className.baseVal ?? each.className, ground: ground.slice(0, 3), ink });
    }
    return seen;
}"""  # noqa: E501
AXE = """scope => axe.run({ include: [[scope]] }, { resultTypes: ['violations'] }).then(({ violations }) => violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical').map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 200))]))"""  # noqa: E501


def faint(page):
    """Text below 4.5:1 in what we draw."""
    return [each for each in page.evaluate(CONTRAST) if each["ratio"] < 4.5]


def findings(page, scope=".tnb"):
    """What axe-core calls serious or critical in what we draw, and faint text."""
    if not page.evaluate("() => Boolean(window.axe)"):
        page.evaluate(AXE_SCRIPT)
    return page.evaluate(AXE, scope) + faint(page)
