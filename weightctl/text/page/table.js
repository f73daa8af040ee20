document.querySelectorAll("th button").forEach(button=>button.addEventListener("click",()=>{
const head=button.parentElement,body=head.closest("table").tBodies[0],place=head.cellIndex;
const order=head.getAttribute("aria-sort"),isNumber=head.classList.contains("n");
const rises=order?order==="descending":!isNumber;
head.parentElement.querySelectorAll("th").forEach(each=>each.removeAttribute("aria-sort"));
head.setAttribute("aria-sort",rises?"ascending":"descending");
const key=row=>row.cells[place].dataset.v??row.cells[place].textContent;
const compare=isNumber?(a,b)=>key(b)-key(a)
:(a,b)=>key(b).localeCompare(key(a),undefined,{numeric:true});
[...body.rows].sort((a,b)=>rises?compare(b,a):compare(a,b)).forEach(row=>body.append(row));
}));
document.querySelectorAll("input[type=search]").forEach(field=>field.addEventListener("input",()=>{
const wanted=field.value.toLowerCase();
const rows=field.parentElement.querySelector("tbody").rows;
[...rows].forEach(row=>{row.hidden=!row.textContent.toLowerCase().includes(wanted);});
}));
