//! Plots as self-contained SVG.
//!
//! | module | what |
//! |---|---|
//! | [`lines`] | lines over time or another axis, panels below each other |
//! | [`bars`] | groups of bars |
//! | [`trials`] | panels of trials |

pub mod bars;
pub mod lines;
pub mod trials;

/// Width of a plot, in pixels, as everything here.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 18.0;

/// Colour of stock PostgreSQL.
pub const STOCK: &str = "#c2410c";
/// Colour of Lockstep.
pub const LOCKSTEP: &str = "#0f6cbd";

/// Text inside SVG or HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The start of a plot: its size, title and background.
fn begin(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"600\" fill=\"#111827\">{title}</text>\n",
        title = escape(title)
    )
}

/// The next number that divides well into four.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|&candidate| candidate >= value)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(nice(3950.0), 4000.0);
        assert_eq!(nice(1.0), 1.0);
        assert_eq!(nice(87.0), 100.0);
    }
}
