//! What runs have come by.

#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub commits: u64,
    pub applied: u64,
    pub refused: u64,
    pub prepared: u64,
    pub kills: u64,
    pub deaths: u64,
    pub lost: u64,
    pub given_up: u64,
    pub taken_back: u64,
    pub meddled: u64,
    pub switched: u64,
    pub rolled_back: u64,
}

impl Seen {
    fn all(&mut self) -> [&mut u64; 12] {
        [
            &mut self.commits,
            &mut self.applied,
            &mut self.refused,
            &mut self.prepared,
            &mut self.kills,
            &mut self.deaths,
            &mut self.lost,
            &mut self.given_up,
            &mut self.taken_back,
            &mut self.meddled,
            &mut self.switched,
            &mut self.rolled_back,
        ]
    }

    pub fn add(&mut self, mut other: Self) {
        for (mine, its) in self.all().into_iter().zip(other.all()) {
            *mine += *its;
        }
    }

    pub fn least(mut self) -> u64 {
        self.all().into_iter().map(|it| *it).min().unwrap_or(0)
    }
}
