"""Operations that run the same way in blocking and in async code."""
