// Light or dark: the reader's choice, kept in this browser, else the system's. Not a module, so that it comes before the first paint.

(() => {
  const KEY = "lightningbus-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem(KEY) ?? "system"; } catch { return "system"; } };
  let choice = stored();

  function paint() {
    const theme = choice === "system" ? (dark.matches ? "dark" : "light") : choice;
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("themechange"));
  }

  paint();
  dark.addEventListener("change", paint);
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = choice;
    select.addEventListener("change", () => {
      choice = select.value;
      try { localStorage.setItem(KEY, choice); } catch { /* the choice lasts as long as the page */ }
      paint();
    });
  });
})();
