"""A browser without scripts: it loads pages of an ASGI application, and submits the forms that they have."""

from __future__ import annotations

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urljoin

import httpx

BASE = "http://localhost"


class Form(NamedTuple):
    """A form of a page: where it leads, how, and the values that its fields have."""

    action: str
    method: str
    fields: dict[str, str]
    options: frozenset[str]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: dict[str, str] = {}
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._href: str | None = None
        self._link: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        name, value = given.get("name"), given.get("value") or ""
        if tag == "form":
            self.forms.append(Form(given.get("action") or "", (given.get("method") or "get").lower(), {}, frozenset()))
        elif tag in ("input", "textarea", "select") and name and self.forms:
            form = self.forms[-1]
            if given.get("type") in ("radio", "checkbox"):
                self.forms[-1] = form._replace(options=form.options | {f"{name}={value}"})
            else:
                form.fields[name] = value
        elif tag == "a":
            self._href, self._link = given.get("href"), []

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        self._link.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._href is not None:
            self.links.setdefault(" ".join("".join(self._link).split()), self._href)
            self._href = None


class Page:
    """A page that was loaded."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.status = response.status_code
        self.html = response.text
        self.path = response.url.path
        parser = _Page()
        parser.feed(self.html)
        self.forms, self.links, self.tags = parser.forms, parser.links, parser.tags
        self.text = " ".join(" ".join(parser.words).split())

    def form(self, action: str) -> Form:
        """The form that leads to an address which ends so."""
        (found,) = [one for one in self.forms if one.action.endswith(action)]
        return found

    def commands(self) -> list[str]:
        """The command lines beside what is shown."""
        parts = self.html.split("<code>")[1:]
        return [part.split("</code>")[0] for part in parts if part.startswith("retrysafe ")]


class Visitor:
    """A person with a browser."""

    def __init__(self, app: Any, **headers: str) -> None:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50000))
        self.client = httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers)

    async def get(self, path: str, **headers: str) -> Page:
        """Load a page."""
        return Page(await self.client.get(path, headers=headers))

    async def follow(self, page: Page, text: str) -> Page:
        """Follow a link by its text."""
        return await self.get(urljoin(str(page.response.url), page.links[text]))

    async def submit(self, page: Page, action: str, fields: Mapping[str, str] = {}, **headers: str) -> Page:
        """Submit a form of a page, with these fields filled in; follow to the page that it leads to."""
        form = page.form(action)
        for name, value in fields.items():
            assert name in form.fields or f"{name}={value}" in form.options, f"the form has no {name} {value!r}"
        if form.method == "get":
            filled = {name: value for name, value in {**form.fields, **fields}.items() if value}
            return Page(await self.client.get(form.action, params=filled))
        return await self.post(form.action, {**form.fields, **fields}, **{"Origin": BASE, **headers})

    async def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Page:
        """Send fields to an address, and follow to the page that it leads to."""
        response = await self.client.post(path, data=dict(fields), headers=headers)
        if response.status_code == 303:
            response = await self.client.get(response.headers["location"])
        return Page(response)

    async def close(self) -> None:
        """Close the browser."""
        await self.client.aclose()
