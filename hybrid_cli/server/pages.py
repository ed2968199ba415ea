"""Routes of the page: its HTML, and the scripts and styles that it loads."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from hybrid_cli.reporting.colours import style_sheet


def routes() -> list[BaseRoute]:
    """Return the routes of `/` and `/static`; scripts of the report are served from the package of the report."""
    page = files(__package__).joinpath("static/index.html").read_text("utf-8")
    colours = style_sheet()

    async def index(_: object) -> Response:
        return HTMLResponse(page)

    async def colour_variables(_: object) -> Response:
        return Response(colours, media_type="text/css")

    static = StaticFiles(packages=[(__package__, "static"), ("hybrid_cli.reporting", "static")])
    return [Route("/", index), Route("/static/colours.css", colour_variables), Mount("/static", static)]
