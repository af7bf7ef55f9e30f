"""HTTP server of the API. Imports aiohttp, so nothing is imported before somebody has connected."""
