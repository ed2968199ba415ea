"""Foreign forms of encoders: files of other libraries, published checkpoints and their presets."""
