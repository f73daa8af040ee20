"""HTML pages with charts: elements, style, and heat maps. They load no resources."""
