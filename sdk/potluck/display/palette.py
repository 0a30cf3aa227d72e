"""Colours and letters: Okabe and Ito's palette, told apart with any colour vision, on white and on
black."""

# M. Okabe, K. Ito, "Color Universal Design" (2008)
PALETTE = {
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "sky": "#56b4e9",
    "vermilion": "#d55e00",
    "purple": "#cc79a7",
    "grey": "#8c8c8c",
}
# text on these; white on the others
ON_COLOUR = {"orange": "#1a1a1a", "sky": "#1a1a1a", "purple": "#1a1a1a"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK = "#24292f"
DARK_INK = "#e6edf3"
PAPER = "#ffffff"
DARK_PAPER = "#0d1117"
FADED = {"ink": 1.0, "muted": 0.62, "grid": 0.14, "faint": 0.05}  # shares of the ink
