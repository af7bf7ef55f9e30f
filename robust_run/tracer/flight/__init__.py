"""torch's flight recorder as a second clock: how far each rank is in each group, also in what C++ and compiled graphs start.

Pure: what is read comes from `sight.flight_recorder` and the ring; here is what it means.
"""
