"""A whole page: head, policy, style, script. Pure.

The page's Content-Security-Policy allows nothing but its own style and the script whose digest it names; a live page may also
ask the server it came from. So even a mistake in escaping could not run or fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import json

from robust_run.report.pages.markup import text
from robust_run.report.pages.style import CSS

# The little that pages do: ranks are walked through with arrow keys and looked at, commands are copied, lines are looked for, and a
# live page renews itself. A page is whole
# without it: states are in its text and titles. The script builds nodes and sets their text, so nothing of a job is ever read as
# HTML by it; what the live page fetches is a page of ours, parsed but not run.

DRILL = """
'use strict';
function rankData(){var e=document.getElementById('rank-data');return e?JSON.parse(e.textContent):null}
function add(parent,tag,css,text){var e=document.createElement(tag);if(css)e.className=css;
if(text!==undefined)e.textContent=text;parent.appendChild(e);return e}
function textOf(d,rank){for(var i=0,at=0;i<d.of.length;i+=2){at+=d.of[i];if(rank<at)return d.texts[d.of[i+1]]}return['unseen','']}
function nodeOf(d,rank){for(var i=0;i<d.nodes.length;i++){var n=d.nodes[i];if(rank>=n[1]&&rank<n[1]+n[2])return n}return null}
function look(cell){
var d=rankData(),panel=document.getElementById('rank-panel');if(!d||!panel||!cell.dataset.r)return;
document.querySelectorAll('.cell[aria-current]').forEach(function(c){c.removeAttribute('aria-current')});
cell.setAttribute('aria-current','true');
var spans=cell.dataset.r.split(',').map(function(s){var e=s.split('-');return[+e[0],+(e[1]||e[0])]});
var first=spans[0][0],last=spans[spans.length-1][1];
function within(r){return spans.some(function(s){return r>=s[0]&&r<=s[1]})}
var inside=panel.contains(cell),box=inside?panel.querySelector('.said'):panel;
if(!inside)panel.textContent='';else if(box)box.textContent='';
if(!box)box=panel;
if(first===last){var t=textOf(d,first),n=nodeOf(d,first);
add(box,'b','','rank '+first);add(box,'span','dim',(n?' on '+n[0]+', local rank '+(first-n[1]):'')+' \u2014 '+(d.words[t[0]]||''));
if(t[1])add(box,'div','',t[1]);return}
var nodes=d.nodes.filter(function(n){return spans.some(function(s){return n[1]<=s[1]&&n[1]+n[2]>s[0]})});
var shown=add(panel,'div','said');shown.textContent='ranks '+cell.dataset.r.replace(/,/g,', ')+' on '+nodes.length+' node'+(nodes.length>1?'s':'')+
'; choose one';
nodes.slice(0,64).forEach(function(n){add(panel,'h3','',n[0]);var cells=add(panel,'div','cells');
for(var r=n[1];r<n[1]+n[2];r++){if(!within(r))continue;var c=add(cells,'button','cell s-'+textOf(d,r)[0],String(r));
c.type='button';c.dataset.r=String(r);c.title=textOf(d,r)[1]}});
if(nodes.length>64)add(panel,'p','dim',(nodes.length-64)+' more nodes are not shown');
}
document.addEventListener('click',function(e){var c=e.target.closest&&e.target.closest('.cell');if(c)look(c)});
document.addEventListener('keydown',function(e){
var c=e.target.closest&&e.target.closest('.cell');if(!c)return;
var group=c.closest('.view')||c.closest('.panel')||document,all=Array.from(group.querySelectorAll('.cell'));
var at=all.indexOf(c),to=null,box=c.getBoundingClientRect();
if(e.key==='ArrowRight')to=all[at+1];else if(e.key==='ArrowLeft')to=all[at-1];
else if(e.key==='Home')to=all[0];else if(e.key==='End')to=all[all.length-1];
else if(e.key==='ArrowDown'||e.key==='ArrowUp'){var down=e.key==='ArrowDown',best=1e9;all.forEach(function(o){
var b=o.getBoundingClientRect(),dy=down?b.top-box.top:box.top-b.top;if(dy<4)return;
var far=dy*1000+Math.abs(b.left-box.left);if(far<best||best===1e9){best=far;to=o}})}
else return;
e.preventDefault();if(!to)return;c.tabIndex=-1;to.tabIndex=0;to.focus();look(to)});
"""

#: Commands are copied, and lines of evidence looked for. Browsers copy for pages of this machine or over TLS; else what is selected.
TOOLS = """
document.addEventListener('click',function(e){
var b=e.target.closest&&e.target.closest('.copy');if(!b)return;
var code=b.previousElementSibling;
function said(done){b.textContent=done?'copied':'press Ctrl+C';setTimeout(function(){b.textContent='copy'},2000)}
function choose(){var s=getSelection(),done=false;s.selectAllChildren(code);
try{done=document.execCommand('copy')}catch(x){}if(done)s.removeAllRanges();said(done)}
if(navigator.clipboard&&navigator.clipboard.writeText)navigator.clipboard.writeText(code.textContent).then(function(){said(true)},choose);
else choose()});
document.addEventListener('input',function(e){
var field=e.target,box=field.dataset&&field.dataset.find&&document.getElementById(field.dataset.find);if(!box)return;
var wanted=field.value.toLowerCase(),found=0,all=0;
box.querySelectorAll('pre').forEach(function(p){
if(p.whole===undefined)p.whole=p.textContent;
var lines=p.whole.split('\\n'),hits=wanted?lines.filter(function(l){return l.toLowerCase().indexOf(wanted)>=0}):lines;
all+=lines.length;found+=hits.length;p.textContent=hits.join('\\n')});
box.querySelectorAll('details').forEach(function(d){if(wanted)d.open=true});
document.getElementById(field.id+'-said').textContent=wanted?found+' of '+all+' lines':''});
"""

#: The address may have a password in it, which fetch refuses.
LIVE = """
(function(){
var where=location.origin+location.pathname.replace(/[^/]*$/,'')+'page';
var every=2000,last={},badge=document.getElementById('live');
function parts(root){return Array.from(root.querySelectorAll('main>[data-part]'))}
parts(document).forEach(function(p){last[p.dataset.part]=p.outerHTML});
function renew(old,html,fresh){
var open=Array.from(old.querySelectorAll('details[open][id]')).map(function(d){return d.id});
var scrolls=Array.from(old.querySelectorAll('.scroll,.heat')).map(function(s){return s.scrollLeft});
var active=document.activeElement,key=old.contains(active)?(active.id||active.dataset.key||active.getAttribute('href')):null;
old.replaceWith(fresh);
open.forEach(function(id){var d=document.getElementById(id);if(d)d.open=true});
fresh.querySelectorAll('.scroll,.heat').forEach(function(s,i){if(scrolls[i])s.scrollLeft=scrolls[i]});
if(key){var all=Array.from(fresh.querySelectorAll('a,button,summary,[tabindex]'));
var to=all.find(function(e){return e.id===key||e.dataset.key===key||e.getAttribute('href')===key});
if(to)to.focus({preventScroll:true})}}
function say(text,stale){if(badge){document.body.classList.toggle('stale',!!stale);
if(badge.lastChild.textContent!==text)badge.lastChild.textContent=text}}
var sel=function(){var s=getSelection();return s&&!s.isCollapsed};
function look(){
if(document.hidden||sel())return setTimeout(look,every);
var stop=new AbortController(),timer=setTimeout(function(){stop.abort()},15000);
fetch(where,{credentials:'same-origin',cache:'no-store',signal:stop.signal}).then(function(r){
if(!r.ok)throw new Error(r.status===401?'the token is not accepted any more':'the controller answers '+r.status);return r.text()
}).then(function(text){
var page=new DOMParser().parseFromString(text,'text/html'),known={};
parts(page).forEach(function(p){var name=p.dataset.part,html=p.outerHTML;known[name]=1;
if(last[name]===html)return;var old=document.querySelector('main>[data-part="'+name+'"]');
last[name]=html;var fresh=document.importNode(p,true);
if(old)renew(old,html,fresh);else document.querySelector('main').appendChild(fresh)});
parts(document).forEach(function(p){if(!known[p.dataset.part]){delete last[p.dataset.part];p.remove()}});
document.title=page.title;document.body.dataset.renewed=String(1+(+document.body.dataset.renewed||0));
var over=!page.getElementById('live');
say(over?'the job is over':'live',false);if(!over)setTimeout(look,every)
}).catch(function(e){say('no answer: '+(e.name==='AbortError'?'it takes too long':e.message)+'; what is shown may be old',true);
setTimeout(look,2*every)}).finally(function(){clearTimeout(timer)})}
setTimeout(look,every)})();
"""


def document(title: str, top: str, body: str, footer: str, *, live: bool = False) -> str:
    """Return the page. `title` is escaped here, all else is finished HTML."""
    script = DRILL + TOOLS + (LIVE if live else "")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        f"form-action 'none'{'; connect-src &#39;self&#39;' if live else ''}"
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv=Content-Security-Policy content="{policy}">'
        "<meta name=viewport content='width=device-width,initial-scale=1'><meta name=referrer content=no-referrer>"
        "<meta name=color-scheme content='light dark'>"
        f"<title>{text(title, 300)}</title><style>{CSS}</style></head>\n<body>"
        f"<a class=skip href=#main>to the content</a><header><nav class=top aria-label='where you are'>{top}</nav></header>"
        f"<main id=main>\n{body}\n</main><footer>{footer}</footer><script>{script}</script></body></html>\n"
    )


def data_block(name: str, value: object) -> str:
    """Return data for the script. Nothing in it can end the element it is in."""
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for char in "<>&":
        written = written.replace(char, f"\\u{ord(char):04x}")
    return f'<script type="application/json" id={name}>{written}</script>'
