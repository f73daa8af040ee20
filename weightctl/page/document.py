"""Renders a whole HTML page, which loads no resources and runs only its own script."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from weightctl.page.markup import Markup, element

# With this policy, a browser does not load resources, whatever the page contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_document(title: str, main: Markup, script: str = "") -> str:
    """Return a page with its style; a browser runs `script`, and no other script on the page."""
    policy, scripts = _POLICY, list[Markup]()
    if script:
        digest = b64encode(sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        scripts = [element("script", Markup(script))]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    page = element("html", head, element("body", main, *scripts), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


_LIGHT = """
--page:#fbfbfa;--card:#fff;--ink:#1c2024;--soft:#60666d;--rule:#e2e4e6;--code:#f0f1f2;
--good:#18794e;--bad:#ce2c31;--bad-soft:#fdeceb;--warn:#946800;--first:#2563c9;--second:#8d99a8;
--same:#eceeef;
--h0:#e9f1fc;--h1:#d2e3f9;--h2:#b6d1f4;--h3:#95bbec;--h4:#73a2e2;--h5:#5187d3;--h6:#366cbd;
--h7:#23529d;--h8:#153a78;
--r0:#8ed0c4;--r1:#c5e7e1;--r2:#dfe3e8;--r3:#fbe3b5;--r4:#f6c26b;--r5:#ea9539;--r6:#c7621b;
"""
_DARK = """
--page:#111315;--card:#191b1e;--ink:#eceef0;--soft:#9ba1a8;--rule:#2e3236;--code:#24272b;
--good:#4cc38a;--bad:#ff6369;--bad-soft:#3a1a1d;--warn:#f0c000;--first:#6ba4f8;--second:#7a8694;
--same:#25282c;
--h0:#1b2a40;--h1:#1d3557;--h2:#204271;--h3:#26528d;--h4:#3166ac;--h5:#4580cb;--h6:#669ee5;
--h7:#90bcf6;--h8:#c0dbff;
--r0:#1f7a6c;--r1:#22574f;--r2:#363b41;--r3:#5c4a1f;--r4:#8a6317;--r5:#bd7c1d;--r6:#ec9a3c;
"""
_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);overflow-wrap:anywhere;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
main{max-width:66rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.15rem;margin:2.5rem 0 .5rem}
p{margin:.25rem 0}
.soft,caption,figcaption{color:var(--soft);font-size:.9rem}
code{font:.88em ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;
background:var(--code);border-radius:4px;padding:.08em .32em}
.verdict{display:inline-block;margin:.9rem 0 0;padding:.3rem .8rem;border-radius:999px;
font-weight:600;color:#fff;background:var(--good)}
.verdict.bad{background:var(--bad)}
@media (prefers-color-scheme:dark){.verdict{color:#0d0f11}}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:.9rem 1.1rem;margin:.6rem 0}
figure{margin:.6rem 0}
figcaption{margin-top:.5rem}
figure h3,.card h3{font-size:.95rem;margin:0 0 .5rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
caption{text-align:left;caption-side:bottom;padding-top:.5rem}
th,td{text-align:left;vertical-align:top;padding:.34rem .9rem .34rem 0;
border-bottom:1px solid var(--rule)}
tr:last-child>td,tr:last-child>th{border-bottom:0}
th{font-weight:600}
thead th{color:var(--soft);font-weight:500;font-size:.85rem;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.nowrap{white-space:nowrap}
th button{all:unset;cursor:pointer}th button:focus-visible{outline:2px solid var(--first)}
th[aria-sort] button::after{content:" \\2193"}
th[aria-sort=ascending] button::after{content:" \\2191"}
svg.spark{width:6rem;min-width:6rem;height:1.25rem}
td.wide{min-width:13rem}td.nowrap code{white-space:nowrap}table.slim{width:auto}
tr.bad td:first-child{box-shadow:inset 3px 0 var(--bad);padding-left:.6rem}
.good{color:var(--good)}.wrong{color:var(--bad)}.skipped,.different{color:var(--warn)}
.state{font-weight:600;white-space:nowrap}
.problems{list-style:none;margin:0;padding:0}
.problems li{padding:.55rem 0 .55rem .8rem;border-bottom:1px solid var(--rule);
border-left:3px solid var(--bad);margin-bottom:.4rem}
.problems li:last-child{border-bottom:0}
.cause{margin-top:.2rem}
.cause b{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem}
.tiles .card{margin:0;max-width:20rem}.tiles .soft{display:block;line-height:1.35}
.tile b{display:block;font-size:1.45rem;line-height:1.3;font-variant-numeric:tabular-nums}
.bar{display:block;height:.6rem;border-radius:3px;background:var(--first);min-width:1px}
.bar.bad{background:var(--bad)}
td.track{width:18rem;min-width:6rem;vertical-align:middle}
details>summary{cursor:pointer;color:var(--soft)}
footer{margin-top:3rem;color:var(--soft);font-size:.85rem}
svg{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","DejaVu Sans",sans-serif}
svg .tick{fill:var(--soft);font-variant-numeric:tabular-nums}svg .name{fill:var(--ink)}
svg .grid{stroke:var(--rule)}
svg .curve{fill:none;stroke-width:1.8;stroke-linejoin:round}
svg .curve.first{stroke:var(--first)}svg .curve.second{stroke:var(--second)}
svg .first{fill:var(--first)}svg .second{fill:var(--second)}svg .curve{fill:none}
svg .bad{fill:var(--bad)}
svg .usual{fill:var(--second)}svg line.usual{stroke:var(--second);stroke-width:3}
svg .stem{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:3 2}
svg .mark{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:4 3}
svg .cross{stroke:var(--card);stroke-width:1.8;stroke-linecap:round;pointer-events:none}
svg .sense{fill:transparent}svg .sense:hover{fill:var(--ink);fill-opacity:.07}
svg .same{fill:var(--same)}
@media (max-width:34rem){main{padding:1.25rem .75rem 3rem}.card{padding:.8rem}.time{display:none}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
_LEVELS = "".join(
    f"svg .{letter}{level}{{fill:var(--{letter}{level})}}"
    for letter, count in (("h", 9), ("r", 7))
    for level in range(count)
)

# The class of problems comes last, so that its color overrides others.
STYLE = (
    f":root{{{_LIGHT}}}@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"{_RULES}{_LEVELS}svg .bad{{fill:var(--bad)}}"
).replace("\n", "")
